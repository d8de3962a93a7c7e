"""The decision: schedule(snapshot, policy, now) -> Plan. Pure."""
