"""The only writer of job state. One file is one arrow of the state diagram."""
