"""Grafana dashboards, written in Python: fleet, run and research; `build` writes them, `push` uploads them."""
