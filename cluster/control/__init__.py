"""The controller's side: the machines, the deployment, and the repair of a broken ring."""
