"""Item-to-item neighbours from baskets, no torch."""
import math
import random
from collections import defaultdict

random.seed(0)
baskets = [random.sample(range(1500), random.randint(3, 25)) for _ in range(12_000)]
count, together = defaultdict(int), defaultdict(lambda: defaultdict(int))
for basket in baskets:
    for a in basket:
        count[a] += 1
        for b in basket:
            if a != b:
                together[a][b] += 1


def neighbours(item, k=20):
    scored = [(n / math.sqrt(count[item] * count[other]), other) for other, n in together[item].items()]
    return sorted(scored, reverse=True)[:k]


top = {item: neighbours(item) for item in count}
hits = 0
for _ in range(2):
    for basket in baskets:
        scores = defaultdict(float)
        for item in basket[:-1]:
            for score, other in top[item]:
                scores[other] += score
        best = sorted(scores, key=scores.get, reverse=True)[:10]
        hits += basket[-1] in best
print(hits)
