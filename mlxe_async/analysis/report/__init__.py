"""A report of runs as one HTML file, made from their folders alone: live, finished or dead, here or elsewhere.

From the ground up, each module knowing only those before it:

    points, clock, happenings, story    what one pass over a log leaves: numbers, times, faults
    folder, ending                      a run's folder; how the run ended, in words
    groups                              runs of the same settings, side by side with others
    thinning, scales                    curves of few points that lose no peak; axes with plain numbers
    markup, chart, shares               HTML that is escaped; curves, bars and marks as inline SVG
    learning, speed, rows               the sections, each from the numbers of groups
    kept                                runs as a study kept them, each told as a story
    faults, about                       the same: what failed; settings, machine and versions
    style, page                         the whole file with its style

The page holds no script and asks for nothing: its own policy of content forbids both.
"""
