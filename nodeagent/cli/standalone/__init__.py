"""The main job in the foreground: `nodeagentctl run`, which `script/run` calls."""
