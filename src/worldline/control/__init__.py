"""The composition root and, later, service, HTTP API and command line."""
