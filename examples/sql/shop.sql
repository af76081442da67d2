CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, country TEXT);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER REFERENCES customers, ordered_on TEXT, cents INTEGER);
INSERT INTO customers VALUES (1, 'Ada', 'NO'), (2, 'Ben', 'DE'), (3, 'Cleo', 'NO'), (4, 'Dan', 'FR');
INSERT INTO orders VALUES
  (1, 1, '2026-09-02', 12900), (2, 2, '2026-09-14', 4500), (3, 1, '2026-10-01', 8800),
  (4, 3, '2026-10-11', 23000), (5, 4, '2026-10-20', 1900), (6, 2, '2026-11-03', 15750);
