from multiprocessing import Pool

import librosa


def features(path):
    y, sr = librosa.load(path)
    return librosa.feature.mfcc(y=y, sr=sr)


if __name__ == "__main__":
    with open("files.txt") as f:
        paths = f.read().split()
    with Pool(processes=32) as pool:
        result = pool.map(features, paths)
