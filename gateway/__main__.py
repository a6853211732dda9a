"""`python -m gateway`: the millrace command, if its script is not on the PATH."""

from gateway.cli.main import app

app(prog_name="millrace")
