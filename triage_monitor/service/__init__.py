"""The edges: HTTP in, Prometheus and parameters out. No arithmetic about gaps lives here."""
