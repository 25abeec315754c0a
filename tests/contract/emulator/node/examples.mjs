// The examples of @google-cloud/datastore, with the emulator of the environment.
// Prints one JSON object: the result of each example, by its name. ../test_clients.py has the
// expected results, also for the Python client.

import {Datastore, PropertyFilter, and, or, AggregateField} from '@google-cloud/datastore';

const path = key => key.path;
const keyOf = entity => path(entity[Datastore.KEY]);
const code = promise => promise.then(() => 0, error => error.code);

async function putTasks(ds) {
  const tasks = [1, 2, 3, 4, 5].map(i => ({
    key: ds.key(['Task', i]),
    data: {priority: i, done: i % 2 === 0, tags: ['all', `t${i}`]},
  }));
  await ds.save(tasks);
}

const ids = entities => entities.map(entity => entity[Datastore.KEY].path.at(-1));
const run = async (ds, query, options) => (await ds.runQuery(query, options))[0];

const examples = {
  async save_and_get(ds) {
    const key = ds.key(['List', 'default', 'Task', 7]);
    await ds.save({
      key,
      data: {
        text: 'ü',
        at: new Date('2024-01-02T03:04:05.678Z'),
        number: 42,
        real: 2.5,
        blob: Buffer.from([0, 255]),
        nothing: null,
        empty: [],
        many: ['a', 1, true],
        inner: {x: [1, null], deep: {y: 'z'}},
        other: ds.key(['K', 'n']),
        where: ds.geoPoint({latitude: 1, longitude: 2}),
      },
    });
    const [task] = await ds.get(key);
    return {
      ...task,
      key: keyOf(task),
      blob: [...task.blob],
      other: path(task.other),
      where: [task.where.latitude, task.where.longitude],
    };
  },

  async missing(ds) {
    await putTasks(ds);
    const [found] = await ds.get([1, 9, 2].map(i => ds.key(['Task', i])));
    const [none] = await ds.get(ds.key(['Task', 9]));
    return {found: ids(found).sort(), none: none ?? null};
  },

  async int64_and_double(ds) {
    const key = ds.key(['Number', 1]);
    await ds.save({
      key,
      data: {
        large: ds.int('9223372036854775807'),
        small: ds.int('-9223372036854775808'),
        whole: ds.double(3),
        list: [ds.int('9007199254740993'), ds.double(1)],
      },
    });
    const [number] = await ds.get(key, {wrapNumbers: true});
    const query = ds.createQuery('Number').filter(new PropertyFilter('whole', '=', ds.double(3)));
    const asInteger = ds.createQuery('Number').filter(new PropertyFilter('whole', '=', 3));
    return {
      large: number.large.value,
      small: number.small.value,
      whole: number.whole,
      list: [number.list[0].value, number.list[1]],
      found: [(await run(ds, query, {wrapNumbers: true})).length,
              (await run(ds, asInteger, {wrapNumbers: true})).length],
    };
  },

  async insert_update_upsert_delete(ds) {
    const key = ds.key(['Task', 'a']);
    const seen = [await code(ds.update({key, data: {n: 0}}))];
    seen.push(await code(ds.insert({key, data: {n: 1}})));
    seen.push(await code(ds.insert({key, data: {n: 2}})));
    seen.push((await ds.get(key))[0].n);
    await ds.update({key, data: {n: 3}});
    await ds.upsert({key, data: {n: 4}});
    seen.push((await ds.get(key))[0].n);
    await ds.delete(key);
    await ds.delete(key);
    seen.push((await ds.get(key))[0] ?? null);
    return seen;
  },

  async merge(ds) {
    const key = ds.key(['Task', 'a']);
    await ds.save({key, data: {a: 1, b: 1}});
    await ds.merge({key, data: {b: 2, c: 2}});
    return (await ds.get(key))[0];
  },

  async ids_are_allocated(ds) {
    const key = ds.key('Task');
    await ds.save({key, data: {n: 1}});
    const [saved] = await ds.get(key);
    const [allocated] = await ds.allocateIds(ds.key('Task'), 3);
    const numbers = allocated.map(each => each.id);
    return [saved.n, new Set([...numbers, key.id]).size];
  },

  async filters(ds) {
    await putTasks(ds);
    const tasks = () => ds.createQuery('Task');
    const filter = (name, op, value) => new PropertyFilter(name, op, value);
    return [
      ids(await run(ds, tasks().filter(filter('priority', '>', 1)).filter(filter('done', '=', false))
        .order('priority', {descending: true}))),
      ids(await run(ds, tasks().filter(or([
        filter('priority', '=', 1),
        and([filter('done', '=', true), filter('priority', '>', 2)]),
      ])))),
      ids(await run(ds, tasks().filter(filter('priority', 'IN', [1, 3, 9])))),
      ids(await run(ds, tasks().filter(filter('priority', 'NOT_IN', [1, 3, 9])))),
      ids(await run(ds, tasks().filter(filter('priority', '!=', 3)))),
      ids(await run(ds, tasks().filter(filter('tags', '=', 't2')))),
      ids(await run(ds, tasks().filter(filter('__key__', '>', ds.key(['Task', 3]))))),
      ids(await run(ds, tasks().order('priority').limit(2).offset(1))),
    ];
  },

  async ancestors(ds) {
    await putTasks(ds);
    await ds.save({key: ds.key(['Task', 1, 'Task', 100]), data: {}});
    return [
      ids(await run(ds, ds.createQuery('Task').hasAncestor(ds.key(['Task', 1])))),
      ids(await run(ds, ds.createQuery().hasAncestor(ds.key(['Task', 1])))),
    ];
  },

  async cursors(ds) {
    await putTasks(ds);
    const seen = [];
    let cursor;
    for (;;) {
      const query = ds.createQuery('Task').order('priority').limit(2);
      if (cursor) query.start(cursor);
      const [entities, info] = await ds.runQuery(query);
      seen.push(ids(entities));
      cursor = info.endCursor;
      if (info.moreResults === Datastore.NO_MORE_RESULTS) return seen;
    }
  },

  async keys_only_and_projection(ds) {
    await putTasks(ds);
    const keys = await run(ds, ds.createQuery('Task').select('__key__').limit(1));
    const tags = await run(ds, ds.createQuery('Task').select('tags')
      .filter(new PropertyFilter('priority', '<', 3)).order('priority').order('tags'));
    const distinct = await run(ds, ds.createQuery('Task').select('done').groupBy('done'));
    return [keys, tags.map(each => each.tags), distinct.map(each => each.done)];
  },

  async stream(ds) {
    const data = {blob: Buffer.alloc(900_000)};
    await ds.save([1, 2, 3, 4, 5, 6, 7, 8].map(
      i => ({key: ds.key(['Big', i]), data, excludeFromIndexes: ['blob']})));
    const seen = [];
    for await (const entity of ds.runQueryStream(ds.createQuery('Big'))) {
      seen.push([...ids([entity]), entity.blob.length]);
    }
    return seen;
  },

  async aggregations(ds) {
    await putTasks(ds);
    const run = async query => (await ds.runAggregationQuery(query))[0][0];
    const all = ds.createAggregationQuery(ds.createQuery('Task'))
      .count('n').sum('priority', 'total').average('priority', 'mean');
    const some = ds.createAggregationQuery(
      ds.createQuery('Task').filter(new PropertyFilter('done', '=', true)))
      .addAggregation(AggregateField.count().alias('n'));
    const none = ds.createAggregationQuery(ds.createQuery('None')).count('n').sum('x', 'total');
    return [await run(all), await run(some), await run(none)];
  },

  async average_of_nothing(ds) {
    const query = ds.createAggregationQuery(ds.createQuery('None')).average('x', 'mean');
    return (await ds.runAggregationQuery(query))[0][0];
  },

  async transactions(ds) {
    const from = ds.key(['Account', 'from']);
    const to = ds.key(['Account', 'to']);
    await ds.save([{key: from, data: {balance: 100}}, {key: to, data: {balance: 0}}]);
    const transaction = ds.transaction();
    await transaction.run();
    const [[a], [b]] = [await transaction.get(from), await transaction.get(to)];
    a.balance -= 30;
    b.balance += 30;
    transaction.save([{key: from, data: a}, {key: to, data: b}]);
    await transaction.commit();
    const balances = (await ds.get([from, to]))[0].map(each => each.balance).sort();

    const lost = ds.transaction();
    await lost.run();
    const [seen] = await lost.get(from);
    await ds.save({key: from, data: {balance: 1}});
    lost.save({key: from, data: {balance: seen.balance + 1}});
    const conflict = await code(lost.commit());

    const rolledBack = ds.transaction();
    await rolledBack.run();
    rolledBack.save({key: from, data: {balance: 2}});
    await rolledBack.rollback();

    const readOnly = ds.transaction({readOnly: true});
    await readOnly.run();
    const [still] = await readOnly.get(from);
    await readOnly.commit();
    return [balances, conflict, still.balance];
  },

  async unindexed(ds) {
    const key = ds.key(['Task', 1]);
    const long = 'x'.repeat(2000);
    const refused = await code(ds.save({key, data: {text: long}}));
    await ds.save({
      key,
      data: {text: long, list: [{note: long}], inner: {note: long}},
      excludeFromIndexes: ['text', 'list[].note', 'inner.note'],
    });
    const [task] = await ds.get(key);
    const query = ds.createQuery('Task').filter(new PropertyFilter('text', '=', 'x'));
    return [refused, task.text.length, task.list[0].note.length, task.inner.note.length,
            (await run(ds, query)).length];
  },

  async incomplete_requests(ds) {
    return [await code(ds.get(ds.key(['Task']))), await code(ds.delete(ds.key(['Task'])))];
  },
};

const seen = {};
for (const [name, example] of Object.entries(examples)) {
  try {
    // A namespace each, so that the examples do not see each other's entities.
    seen[name] = await example(new Datastore({namespace: name}));
  } catch (error) {
    seen[name] = {failed: error.stack};
  }
}
console.log(JSON.stringify(seen));
