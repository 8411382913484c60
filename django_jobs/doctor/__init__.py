"""What slows a queue down, said per finding with its mend. It reads, and needs no superuser."""
