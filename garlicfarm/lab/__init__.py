"""Whole farms on one machine: node processes, and private networks of real routers."""
