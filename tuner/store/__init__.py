"""The database of records and trials: where it lies, how it is written, read, layered and merged.

>>> with Store.open("configs.db") as store:
...     store.add_record(record)
"""
