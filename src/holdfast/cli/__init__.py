"""The command line: `holdfast VERB URI`."""
