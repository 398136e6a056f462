"""Where the time of a run went: samples of every process that works, added up by stage and kind of work."""
