"""Statistics over programs and seeds.

In: metrics of cells and JCTs of jobs. Out: points pooled over seeds, paired ratios with their
intervals, and the number of seeds that separates the best.
"""
