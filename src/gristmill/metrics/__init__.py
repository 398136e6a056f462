"""Metrics of runs in Prometheus' format, and a local Prometheus and Grafana that watch them."""
