"""Tests of the service layer: each operation by a route, a form of the console and a command."""
