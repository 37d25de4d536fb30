"""Teachers propose levels: the level buffer, the scores, and one file per teacher."""
