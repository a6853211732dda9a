"""`python -m gateway`: the millrace command, where its script is not on the PATH."""

from gateway.cli.main import app

app(prog_name="millrace")
