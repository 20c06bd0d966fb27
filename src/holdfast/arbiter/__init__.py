"""Decide a name once: conditional put, commit stores, the probe."""
