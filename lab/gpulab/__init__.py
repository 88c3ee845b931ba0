"""The lab: containers that stand in for rented hosts, and a mirror that stands in for the vendors' sites."""
