class PlacementGroupSchedulingStrategy:
    def __init__(self, group, placement_group_bundle_index):
        assert group.alive
        self.group, self.index = group, placement_group_bundle_index
