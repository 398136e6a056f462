"""Where a run spent its time: samples of every working process, added up by stage and kind of work."""
