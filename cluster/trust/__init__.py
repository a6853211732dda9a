"""Who may take part: certificates, tokens, handshakes, finding each other."""
