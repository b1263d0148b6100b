"""``stitch.schedule`` under the name the stitching passes use; it is defined in :mod:`mlirstitch.dialects.schedule`."""

from mlirstitch.dialects.schedule import schedule_from_attribute, schedule_to_attribute

__all__ = ["schedule_from_attribute", "schedule_to_attribute"]
