"""Everything that touches Ray's private API, behind functions and classes of our own names.

No other package may import `ray._*` or `ray.*._internal`.
"""
