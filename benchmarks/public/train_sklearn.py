"""scikit-learn's grid search over a classifier of text, one process."""

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

texts = [" ".join(f"w{(k * j) % 997}" for j in range(1, 80)) for k in range(6000)]
labels = [k % 3 for k in range(6000)]
search = GridSearchCV(
    make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), SGDClassifier()),
    {"sgdclassifier__alpha": [1e-5, 1e-4, 1e-3, 1e-2]},
)
search.fit(texts, labels)
print(search.best_score_)
