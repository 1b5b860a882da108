${table}_0 AS (SELECT $columns FROM $table WHERE $first IS NOT NULL)
----
${table}_$n AS (SELECT $kept, ($last + $n * 0.01) AS $last FROM ${table}_$before)
----
cd AS (SELECT c.*, d.d2, d.d3, d.d4, d.d5, w.w1, w.w2, w.w3, w.w4
  FROM $c c JOIN $d d ON c.c0 = d.d0 AND c.c1 = d.d1 JOIN $w w ON w.w0 = c.c0),
oc AS (SELECT $orders, $carried FROM $o JOIN cd ON c0 = o0 AND c1 = o1 AND c2 = o3),
lf AS (SELECT $wide FROM oc JOIN $l ON l0 = o0 AND l1 = o1 AND l2 = o2),
hr AS (SELECT h0, h1, h2, count(*) AS n, count(*) FILTER (WHERE h3 > 1) AS p, sum(h5) AS s FROM $h GROUP BY h0, h1, h2),
f_0 AS (SELECT $wide, coalesce(hr.n, 0) AS n, coalesce(hr.s, 0.0) AS s,
  CASE WHEN coalesce(hr.p, 0) > 0 THEN 'paid' ELSE 'neutral' END AS flag
  FROM lf LEFT JOIN hr ON h0 = o0 AND h1 = o1 AND h2 = o3)
----
f_$n AS (SELECT $narrow, (l7 + $n * 0.001) AS l7, n, s, flag,
  CASE WHEN l7 > 5 * $n THEN 'high' ELSE flag END AS flag_$n FROM f_$before)
----
sp AS (SELECT o0, o1, l7, c9, flag,
  (SELECT count(*) FROM $h h WHERE h.h0 = f.o0 AND h.h1 = f.o1 AND h.h2 = f.o3) AS ch,
  (SELECT coalesce(max(l.l7), 0) FROM $l l WHERE l.l0 = f.o0 AND l.l4 = f.l4) AS cs,
  (SELECT coalesce(sum(l.l7), 0) FROM $l l WHERE l.l0 = f.o0 AND l.l1 = f.o1 AND l.l2 = f.o2) AS co FROM $f f)
----
WITH $clauses
SELECT o0, o1, flag, count(*) AS n, sum(l7 + co) AS a, sum(ch) AS h, max(cs) AS m, min(c9) AS lo
FROM sp GROUP BY o0, o1, flag HAVING count(*) > 0
