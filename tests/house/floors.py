#!/usr/bin/env -S python3 -B
"""Calls between sub-folders that do not run down the floors of floors.txt, for each section of it.

floors.py [--build DIR] [--list]: --list prints every such edge with the symbols that make it.
"""
import sys

import house


def read_floors():
    """Section -> folder -> height."""
    sections = {}
    for line in (house.HERE / 'floors.txt').read_text().splitlines():
        words = line.split('#')[0].split()
        if words and words[0].startswith('['):
            section = sections[words[0].strip('[]')] = {}
        elif words:
            height = 1 + max(section.values(), default=0)
            section.update((folder, height) for folder in words)
    return sections


def place(file, section, floors):
    """The folder of a section that a file belongs to, or None."""
    folder = house.folder_of(file)
    if folder in floors:
        return folder
    return folder.split('/')[0] if section == 'top' else None


def main():
    options = house.arguments(__doc__)
    graph = house.Graph(options.build)
    values, status = {}, 0
    for section, floors in read_floors().items():
        homeless = {house.folder_of(file) for file in graph.files
                    if file.split('/')[0] == section} - set(floors)
        for folder in sorted(homeless):
            print(f'{folder} stands on no floor of [{section}]: give it one in floors.txt')
            status = 1
        up = []
        for (a, b), symbols in sorted(graph.edges.items()):
            here, there = place(a, section, floors), place(b, section, floors)
            if here and there and here != there and floors[here] <= floors[there]:
                up.append(f'{section}: {a} -> {b}: {" ".join(sorted(symbols))}')
        values[section] = len(up)
        if options.list:
            print(*up, sep='\n')
    return max(status, house.check(options, values))


if __name__ == '__main__':
    sys.exit(main())
