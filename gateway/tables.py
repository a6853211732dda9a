"""Every table of the gateway, gathered for the migrations; each stands in the room that it belongs to."""
