"""What to do about it: rules over the data of a window (docs/findings.md). Pure functions."""
