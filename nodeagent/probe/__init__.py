"""MEASURE: eBPF programs, their histograms and stall records."""
