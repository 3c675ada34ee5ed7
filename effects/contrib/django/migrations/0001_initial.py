"""The tables of effects and its packages."""

from django.db import migrations

from effects.contrib.django.operations import UpgradeEffectsTables


class Migration(migrations.Migration):
    """Runs our Alembic revisions."""

    initial = True
    dependencies = ()
    operations = (UpgradeEffectsTables(),)
