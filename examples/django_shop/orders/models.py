"""What the shop keeps."""

from django.db import models


class Order(models.Model):
    email = models.EmailField()
    total = models.DecimalField(max_digits=10, decimal_places=2)
    packed = models.BooleanField(default=False)
    paid_at = models.DateTimeField(auto_now_add=True)
