"""Third-party schema and the code generated from it; see README.md in this folder."""
