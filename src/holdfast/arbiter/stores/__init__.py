"""The commit stores that come with Holdfast, one module per kind of server."""
