"""Addresses to frames: reads mappings, ELF files and CPython objects of live processes, all of them
untrusted.
"""
