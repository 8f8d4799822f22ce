-- Makes pg15.catalog: psql -XAt -F ' ' -f catalog.sql against a Postgres 15 without extensions.
SELECT 'T', oid, typname, typcategory, CASE WHEN typispreferred THEN 1 ELSE 0 END, typtype, typelem, typarray,
       replace(format_type(oid, NULL), ' ', '_')
  FROM pg_type WHERE typrelid = 0 OR typname = 'record' ORDER BY oid;
SELECT 'C', castsource, casttarget, castcontext, castmethod, coalesce(prosrc, '-')
  FROM pg_cast LEFT JOIN pg_proc p ON p.oid = castfunc ORDER BY 2, 3;
SELECT 'O', oprname, oprleft, oprright, oprresult,
       CASE WHEN l.lanname = 'sql' THEN proname || '/' || replace(proargtypes::text, ' ', ',') ELSE prosrc END,
       CASE WHEN proisstrict THEN 1 ELSE 0 END
  FROM pg_operator o JOIN pg_proc p ON p.oid = oprcode JOIN pg_language l ON l.oid = prolang ORDER BY o.oid;
SELECT 'P', proname,
       CASE WHEN l.lanname = 'sql' THEN proname || '/' || replace(proargtypes::text, ' ', ',') ELSE split_part(prosrc, ' ', 1) END,
       prorettype,
       prokind::text || CASE WHEN proisstrict THEN 's' ELSE '' END || CASE WHEN proretset THEN 'r' ELSE '' END
         || CASE WHEN provariadic <> 0 THEN 'v' ELSE '' END,
       pronargdefaults, provariadic,
       CASE WHEN proargtypes::text = '' THEN '-' ELSE replace(proargtypes::text, ' ', ',') END
  FROM pg_proc p JOIN pg_language l ON l.oid = prolang
 WHERE 2281 <> ALL (proargtypes) AND prorettype <> 2281 AND prokind IN ('f', 'a', 'w')
   AND prorettype NOT IN (2279, 3838, 325, 3115, 269) AND pronamespace = 11 ORDER BY proname, p.oid;
