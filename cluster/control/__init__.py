"""The controller's side: who is here, what is deployed, what to do when it breaks."""
