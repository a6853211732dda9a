"""How a machine finds its cluster and joins it: discovery, enrolment, and the handshake of every connection."""
