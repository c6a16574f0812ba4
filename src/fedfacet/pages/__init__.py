"""Runs on one page for the browser."""
