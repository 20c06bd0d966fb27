"""Shipped test tools: the simulated world, the faulty S3 server, conformance suites."""
