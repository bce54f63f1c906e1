import java.util.*;

/** Objects of an application: a map of records that come and go, read by a skewed law. */
public class Heap {
    record Person(String name, int[] years, List<String> notes) {}

    public static void main(String[] args) {
        var random = new Random(1);
        var people = new HashMap<Integer, Person>();
        long sum = 0;
        for (int at = 0; at < 600_000; at++) {
            int key = (int) Math.abs(random.nextGaussian() * 40_000);
            Person person = people.get(key);
            if (person == null || at % 11 == 0) {
                var notes = new ArrayList<String>();
                for (int note = 0; note < 4; note++) notes.add("note " + note + " of " + key);
                people.put(key, new Person("person " + key, new int[40], notes));
            } else {
                person.years()[at % 40] += at;
                sum += person.notes().get(at % 4).length();
            }
            if (at % 13 == 0) people.remove(random.nextInt(120_000));
        }
        System.out.println(people.size() + " " + sum);
    }
}
