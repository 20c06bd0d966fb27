"""Object stores: a URL and options in, one small port out."""
