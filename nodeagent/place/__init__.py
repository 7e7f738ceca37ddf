"""DECIDE: Topology x Requests -> Placement; diff -> ordered, reversible actions. Pure."""
