from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("django_jobs", "0002_storage_parameters")]

    operations = [
        migrations.AddField(
            "worker",
            "is_awake",
            # The database's default: a worker of the previous release writes none, and has to be woken.
            models.BooleanField(db_default=False, default=False, verbose_name="awake"),
        ),
    ]
