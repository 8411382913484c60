"""What the suite's tasks leave behind, so that effects can be counted in the database."""

from django.db import models


class Effect(models.Model):
    """One effect of one run. Several rows of a label are doubles."""

    label = models.CharField(max_length=200)
    at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.label
