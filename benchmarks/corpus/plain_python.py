from collections import Counter


def cooccurrences(baskets):
    pairs = Counter()
    for basket in baskets:
        for a in basket:
            for b in basket:
                if a < b:
                    pairs[a, b] += 1
    return pairs


baskets = [[(k * 7 + j * j) % 900 for j in range(25)] for k in range(60_000)]
counts = cooccurrences(baskets)
print(counts.most_common(3))
