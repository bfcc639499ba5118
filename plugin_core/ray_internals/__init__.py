"""Wrappers around Ray's private API. No other package may import `ray._*` or `ray.*._internal`."""
