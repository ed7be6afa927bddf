"""Data sets folders."""
