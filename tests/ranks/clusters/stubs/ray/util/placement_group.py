class PlacementGroup:
    def __init__(self, bundles):
        self.bundles = bundles
        self.alive = True

    def ready(self):
        return self


def placement_group(bundles, strategy):
    assert strategy == "PACK"
    return PlacementGroup(bundles)


def remove_placement_group(group):
    assert group.alive
    group.alive = False
