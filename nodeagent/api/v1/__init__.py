"""Generated from proto/nodeagent/api/v1 by script/proto; a test compares."""
